"""Models of Hugging Face's transformers built from a config alone, with random weights: nothing is downloaded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import MissingDependency
from paceline.models.sources.importing import mended
from paceline.models.sources.inputs import InputSpec
from paceline.models.sources.refusal import CONFIG, refusal

if TYPE_CHECKING:
    from torch import nn

FILE = "config.json"
FORMS = "a model is a .onnx file, a .pt2 file, script.py:factory, module:factory or a folder with a config.json"
TOKENS = 128  # of a sample, where the config allows as many


def is_config(value: object) -> bool:
    """Whether it is a config of transformers; where that is not imported, nothing is."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(value, transformers.PretrainedConfig)


def read_config(text: str) -> Any:
    """The config in a folder, or in the file itself; code that comes with it is never run."""
    path = Path(text).expanduser()
    if path.is_dir() and not (path / FILE).is_file():
        raise refusal("missing-file", text, f": there is no {FILE} in this folder", CONFIG)
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise refusal("missing-file", text, f" does not exist; paths begin at {Path.cwd()}; {FORMS}")
    if path.name != FILE:
        raise refusal("unknown-form", text, f" is in no form that is known; {FORMS}")
    try:
        auto = mended(lambda: __import__("transformers").AutoConfig)
    except ImportError as error:
        raise MissingDependency("transformers", f"pip install transformers ({error})") from None
    try:
        return auto.from_pretrained(path.parent, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise refusal("not-a-config", text, f": transformers does not read its {FILE}: {lines[0]}", CONFIG) from error


def build(
    text: str, config: Any, specs: Sequence[InputSpec]
) -> tuple[nn.Module, tuple[InputSpec, ...], dict[str, Any]]:
    """The module of a config, the inputs that it takes, and facts for the record."""
    import transformers
    from torch import nn

    if hasattr(config, "use_cache"):
        config.use_cache = False  # a whole sequence is computed at once, as in training
    names = config.architectures or []
    try:
        kind = mended(lambda: getattr(transformers, names[0]) if names else transformers.AutoModel)
        make = kind.from_config if not names else kind._from_config
        model = mended(lambda: make(config))
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        what = names[0] if names else "AutoModel"
        raise refusal("not-a-config", text, f": {what} is not built from it: {lines[0]}", CONFIG) from error
    main = str(model.main_input_name)

    class Named(nn.Module):
        """Calls the model by the names of its inputs, and gives a plain tuple."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            named = {main: inputs[0]}
            if getattr(config, "is_encoder_decoder", False):
                named["decoder_input_ids"] = inputs[-1]
            return self.model(**named, return_dict=False)

    facts = {"built_from": f"a config of transformers {transformers.__version__}: {type(model).__name__}"}
    return Named(), tuple(specs) or _inputs_of(text, config, main), facts


def _inputs_of(text: str, config: Any, main: str) -> tuple[InputSpec, ...]:
    """One sample as the config describes it."""
    if main == "input_ids" and getattr(config, "vocab_size", None):
        length = min(TOKENS, getattr(config, "max_position_embeddings", None) or TOKENS)
        return (InputSpec((1, length), "int64", config.vocab_size),)
    if main == "pixel_values" and getattr(config, "image_size", None):
        size = config.image_size
        edges = tuple(size) if isinstance(size, list | tuple) else (size, size)
        return (InputSpec((1, getattr(config, "num_channels", 3), *edges)),)
    why = f": its config does not say what '{main}' looks like; give --input SIZES"
    raise refusal("missing-input", text, why, CONFIG)

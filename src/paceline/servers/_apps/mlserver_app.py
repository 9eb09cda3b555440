"""A model in ONNX Runtime as an inference runtime of MLServer."""

from __future__ import annotations

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse
from onnx_model import OnnxModel, read_config


class OnnxRuntime(MLModel):
    """Decodes with MLServer's own codec, as its runtimes do."""

    async def load(self) -> bool:
        self.model = OnnxModel(read_config())
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        sent = {one.name: one for one in payload.inputs}
        try:
            arrays = {spec["name"]: NumpyCodec.decode_input(sent[spec["name"]]) for spec in self.model.inputs}
        except (KeyError, ValueError) as error:
            raise InferenceError(f"not a request for this model: {error}") from None
        outputs = [NumpyCodec.encode_output(name, array) for name, array in self.model.run(arrays).items()]
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)

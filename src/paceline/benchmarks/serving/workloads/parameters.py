"""What a user may write under `requests:`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from paceline.benchmarks.serving.processing import Form
from paceline.benchmarks.serving.workloads.distribution import Distribution
from paceline.core.parameters import Parameters
from paceline.core.quantity import Fraction


class RequestParameters(Parameters):
    """What is sent."""

    samples: Distribution = Distribution.constant(1)
    """Samples in one request: a number, or a distribution like uniform(1, 8) or {1: 0.7, 4: 0.3}"""
    distinct: int = Field(default=32, ge=1, le=4096)
    """How many different requests are made beforehand; each is sent many times"""
    form: Literal["tensors", "image", "text"] = "tensors"
    """What a sample is when it is sent: the model's tensors, a JPEG picture, or a sentence"""
    processing: Literal["server", "client"] = "server"
    """Who makes tensors of pictures and sentences, and the likeliest classes of the model's output"""
    dataset: Path | None = None
    """The user's own requests: .npz with an array for each input, a folder of pictures, or .jsonl with a text a line"""
    prompt_tokens: Distribution | None = None
    """Language models: length of a prompt; unset is 32"""
    output_tokens: Distribution | None = None
    """Language models: length of an answer; unset is 16"""
    shared_prefix: Fraction = Field(default=0.0, ge=0, le=1)
    """Language models: part of the prompt that all requests share"""
    stream: bool = True
    """Language models: ask for the answer piece by piece"""

    @property
    def read_by_server(self) -> Form | None:
        """What the server has to make tensors of, if it has to."""
        return None if self.form == "tensors" or self.processing == "client" else self.form

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.samples.lowest < 1:
            raise ValueError(f"samples = {self.samples}: a request carries at least one sample")
        if self.form == "tensors" and self.processing != "server":
            raise ValueError(f"processing = {self.processing}: tensors need none; set form to image or text")
        for name in ("prompt_tokens", "output_tokens"):
            wanted = getattr(self, name)
            if wanted is not None and wanted.lowest < 1:
                raise ValueError(f"{name} = {wanted}: at least one token")
        return self

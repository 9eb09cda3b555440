"""Our DETR with the weights of transformers' gives its predictions, its loss and its gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.models._modules.detr import Detr
from paceline.models.base import Batch
from paceline.models.detr import FULL, DetrShape, build_detr

transformers = pytest.importorskip("transformers", reason="needs it: pip install '.[dev]'")

SMALL = DetrShape(
    blocks=(1, 2, 1, 1),
    encoder_layers=2,
    decoder_layers=3,
    hidden=32,
    heads=4,
    inner=64,
    dropout=0.0,
    queries=9,
    classes=7,
    image=128,
    boxes=3,
)
FROZEN = ("weight", "bias", "running_mean", "running_var")


def config_of(shape: DetrShape) -> Any:
    return transformers.DetrConfig(
        backbone_config=transformers.ResNetConfig(depths=list(shape.blocks), out_features=["stage4"]),
        use_timm_backbone=False,
        num_queries=shape.queries,
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.inner,
        decoder_ffn_dim=shape.inner,
        d_model=shape.hidden,
        dropout=shape.dropout,
        num_labels=shape.classes,
    )


def reference_of(shape: DetrShape) -> Any:
    """Transformers' DETR with everything to be trained, and zeros and ones spread so that no wrong mapping can hide."""
    reference = transformers.DetrForObjectDetection(config_of(shape)).requires_grad_(True)
    for name, parameter in reference.named_parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=1.0 if name.endswith("weight") else 0.0, std=0.3)
        elif parameter.dim() == 2:
            nn.init.xavier_uniform_(parameter, gain=2.0)  # or all queries would attend alike and predict the same
    for name, buffer in reference.named_buffers():
        if name.endswith(FROZEN):
            nn.init.uniform_(buffer, *((0.5, 1.5) if name.endswith(("weight", "var")) else (-0.3, 0.3)))
    nn.init.normal_(reference.model.query_position_embeddings.weight)
    return reference


def weights(theirs: dict[str, Tensor], shape: DetrShape) -> dict[str, Tensor]:
    """Transformers' names and layout into ours; of gradients too, which have no frozen norms."""
    ours: dict[str, Tensor] = {}

    def convolution(name: str, norm: str, other: str) -> None:
        ours[f"{name}.weight"] = theirs[f"{other}.convolution.weight"]
        if f"{other}.normalization.weight" in theirs:
            weight, bias, mean, variance = (theirs[f"{other}.normalization.{kind}"] for kind in FROZEN)
            scale = weight / (variance + 1e-5).sqrt()
            ours[f"{norm}.scale"], ours[f"{norm}.shift"] = scale, bias - mean * scale

    resnet = "model.backbone.model"
    convolution("backbone.conv1", "backbone.bn1", f"{resnet}.embedder.embedder")
    for stage, depth in enumerate(shape.blocks):
        for number in range(depth):
            block, other = f"backbone.layer{stage + 1}.{number}", f"{resnet}.encoder.stages.{stage}.layers.{number}"
            for part in range(3):
                convolution(f"{block}.conv{part + 1}", f"{block}.bn{part + 1}", f"{other}.layer.{part}")
            if number == 0:
                convolution(f"{block}.downsample.0", f"{block}.downsample.1", f"{other}.shortcut")

    ours["query_positions"] = theirs["model.query_position_embeddings.weight"]
    for kind in ("weight", "bias"):

        def layer(ours_: str, other: str, kind: str = kind) -> None:
            own = {"attention": "self_attn", "cross_attention": "encoder_attn"}
            for name, their_name in own.items():
                if f"{other}.{their_name}.q_proj.{kind}" not in theirs:
                    continue
                query, key, value, output = (theirs[f"{other}.{their_name}.{part}_proj.{kind}"] for part in "qkvo")
                ours[f"{ours_}.{name}.value.{kind}"], ours[f"{ours_}.{name}.output.{kind}"] = value, output
                if name == "attention":
                    ours[f"{ours_}.{name}.query_key.{kind}"] = torch.cat((query, key))
                else:
                    ours[f"{ours_}.{name}.query.{kind}"], ours[f"{ours_}.{name}.key.{kind}"] = query, key
                ours[f"{ours_}.{name}_norm.{kind}"] = theirs[f"{other}.{their_name}_layer_norm.{kind}"]
            ours[f"{ours_}.feed_forward.0.{kind}"] = theirs[f"{other}.mlp.fc1.{kind}"]
            ours[f"{ours_}.feed_forward.3.{kind}"] = theirs[f"{other}.mlp.fc2.{kind}"]
            ours[f"{ours_}.feed_forward_norm.{kind}"] = theirs[f"{other}.final_layer_norm.{kind}"]

        for number in range(shape.encoder_layers):
            layer(f"encoder.{number}", f"model.encoder.layers.{number}")
        for number in range(shape.decoder_layers):
            layer(f"decoder.{number}", f"model.decoder.layers.{number}")
        ours[f"projection.{kind}"] = theirs[f"model.input_projection.{kind}"]
        ours[f"decoder_norm.{kind}"] = theirs[f"model.decoder.layernorm.{kind}"]
        ours[f"class_head.{kind}"] = theirs[f"class_labels_classifier.{kind}"]
        for number in range(3):
            ours[f"box_head.{2 * number}.{kind}"] = theirs[f"bbox_predictor.layers.{number}.{kind}"]
    return ours


def predictions_of_every_layer(reference: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Each decoder layer's output through the norm and the heads, as the paper scores them: [layers, batch, ...]."""
    outputs: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
        for layer in reference.model.decoder.layers
    ]
    images, real = batch.inputs
    reference(pixel_values=images, pixel_mask=real)
    for hook in hooks:
        hook.remove()
    normed = reference.model.decoder.layernorm(torch.stack(outputs))
    return reference.class_labels_classifier(normed), reference.bbox_predictor(normed).sigmoid()


def test_predictions_agree() -> None:
    reference = reference_of(SMALL).eval()
    workload = build_detr(SMALL)
    module = workload.module.eval()
    module.load_state_dict(weights(reference.state_dict(), SMALL))
    images, real = workload.make_batch(3, torch.Generator().manual_seed(1)).inputs
    assert not real[:, ::32, ::32].all()  # or the mask would not be tested
    with torch.inference_mode():
        logits, boxes = module(images, real)
        theirs = reference(pixel_values=images, pixel_mask=real)
    torch.testing.assert_close(logits, theirs.logits, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(boxes, theirs.pred_boxes, rtol=1e-5, atol=2e-5)
    assert logits.std(dim=1).min() > 1e-3  # the queries differ, by far more than the tolerance


def test_the_loss_of_all_layers_and_its_gradients_agree() -> None:
    # In fp64: in fp32 a rounding before a kink turns a gradient into another one, on some processors and not on others.
    reference = reference_of(SMALL).train().double()
    workload = build_detr(SMALL)
    module = workload.module.train().double()
    assert isinstance(module, Detr)
    module.load_state_dict(weights(reference.state_dict(), SMALL))
    drawn = workload.make_batch(3, torch.Generator().manual_seed(1))
    batch = Batch(
        *(tuple(t.double() if t.is_floating_point() else t for t in part) for part in (drawn.inputs, drawn.targets))
    )

    logits, boxes = module(*batch.inputs)
    loss = workload.loss((logits, boxes), batch)
    loss.backward()

    their_logits, their_boxes = predictions_of_every_layer(reference, batch)
    torch.testing.assert_close(logits, their_logits.transpose(0, 1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(boxes, their_boxes.transpose(0, 1), rtol=1e-4, atol=1e-4)
    scoring = copy.deepcopy(reference.config)
    scoring.auxiliary_loss = True
    labels = [{"class_labels": label, "boxes": box} for label, box in zip(*drawn.targets, strict=True)]
    narrow_logits, narrow_boxes = their_logits.float(), their_boxes.float()  # their loss knows fp32 alone
    their_loss, _, _ = reference.loss_function(
        narrow_logits[-1], labels, torch.device("cpu"), narrow_boxes[-1], scoring, narrow_logits, narrow_boxes
    )
    torch.testing.assert_close(loss.float(), their_loss, rtol=1e-5, atol=1e-5)
    their_loss.backward()

    theirs = {name: parameter.grad for name, parameter in reference.named_parameters() if parameter.grad is not None}
    expected = weights(theirs, SMALL)
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert gradient is not None
        scale = float(expected[name].abs().max())
        torch.testing.assert_close(
            gradient, expected[name], rtol=1e-4, atol=1e-5 * scale + 1e-7, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_the_full_size_has_as_many_parameters() -> None:
    with torch.device("meta"):
        ours = build_detr(FULL).module
        theirs = transformers.DetrForObjectDetection(config_of(FULL))
    count = sum(parameter.numel() for parameter in theirs.parameters())
    assert sum(parameter.numel() for parameter in ours.parameters()) == count == 41_524_768

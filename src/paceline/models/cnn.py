"""The convolutional classifiers of torchvision with random weights, trained on random images of 1000 classes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.models.base import Batch, ModelSpec, Scale, Workload, classification_batch

if TYPE_CHECKING:
    from torch import Tensor

CLASSES = 1000
IMAGE = 224
TINY_IMAGE = 64

# By family, where it is not the usual size: what it was made for, and the least that its depth allows or needs.
IMAGES = {"inception": 299}
TINY_IMAGES = {"inception": 75, "vgg": 32, "resnet": 32}

# Auxiliary classifiers add this share of their loss while training.
AUXILIARY_WEIGHTS = {"googlenet": 0.3, "inception": 0.4}


def _build(name: str, family: str, scale: Scale) -> Workload:
    from paceline.models._modules.torchvision_import import models

    options: dict[str, Any] = {"weights": None, "num_classes": CLASSES}
    if family in AUXILIARY_WEIGHTS:
        # Inception's auxiliary classifier needs the features of a full-size image, so that the tiny scale goes without;
        # the published initialisation of both draws through scipy for minutes and changes no speed.
        options |= {"aux_logits": scale == "full" or family != "inception", "init_weights": False}
    image = IMAGES.get(family, IMAGE) if scale == "full" else TINY_IMAGES.get(family, TINY_IMAGE)
    if scale == "tiny" and family == "resnet":
        block = models.resnet.BasicBlock if name in ("resnet18", "resnet34") else models.resnet.Bottleneck
        module = models.resnet.ResNet(block, [1, 1, 1, 1], num_classes=CLASSES)
    else:
        module = getattr(models, name)(**options)
    return Workload(
        module=module,
        make_batch=partial(classification_batch, (3, image, image), CLASSES),
        loss=partial(_class_loss, AUXILIARY_WEIGHTS.get(family, 0.0)),
    )


def _class_loss(auxiliary_weight: float, output: Tensor | tuple[Tensor | None, ...], batch: Batch) -> Tensor:
    """Cross entropy; a tuple holds the logits first and those of the auxiliary classifiers after."""
    import torch.nn.functional as F

    labels = batch.targets[0]
    if not isinstance(output, tuple):
        return F.cross_entropy(output, labels)
    main, *auxiliary = (F.cross_entropy(logits, labels) for logits in output if logits is not None)
    return main + auxiliary_weight * sum(auxiliary, start=main.new_zeros(()))


def _spec(name: str, family: str, parameters: int, flops: int, batch_size: int) -> ModelSpec:
    image = IMAGES.get(family, IMAGE)
    return ModelSpec(
        name=name,
        family=family,
        task="image classification",
        summary=f"torchvision's {name}; images of {image} x {image}, {CLASSES} classes",
        build=partial(_build, name, family),
        parameters=parameters,
        flops=flops,
        batch_size=batch_size,
        sample="image",
        channels_last=True,
        imports=("torch", "paceline.models._modules.torchvision_import"),
        settings={"image": image, "classes": CLASSES},
    )


# name, family, parameters, forward FLOPs of an image, default batch size (what fills a large GPU and leaves memory)
MODELS = tuple(
    _spec(*row)
    for row in (
        ("resnet18", "resnet", 11_689_512, 3_628_146_688, 128),
        ("resnet34", "resnet", 21_797_672, 7_327_522_816, 128),
        ("resnet50", "resnet", 25_557_032, 8_178_368_512, 64),
        ("resnet101", "resnet", 44_549_160, 15_602_810_880, 64),
        ("resnet152", "resnet", 60_192_808, 23_027_253_248, 64),
        ("resnext50_32x4d", "resnext", 25_028_904, 8_460_959_744, 64),
        ("resnext101_32x8d", "resnext", 88_791_336, 32_828_030_976, 32),
        ("wide_resnet50_2", "wide_resnet", 68_883_240, 22_796_042_240, 64),
        ("wide_resnet101_2", "wide_resnet", 126_886_696, 45_506_101_248, 32),
        ("densenet121", "densenet", 7_978_856, 5_668_323_328, 64),
        ("densenet161", "densenet", 28_681_000, 15_455_814_144, 32),
        ("densenet169", "densenet", 14_149_480, 6_719_686_656, 32),
        ("densenet201", "densenet", 20_013_928, 8_582_731_776, 32),
        ("vgg11", "vgg", 132_863_336, 15_218_180_096, 64),
        ("vgg11_bn", "vgg", 132_868_840, 15_218_180_096, 64),
        ("vgg13", "vgg", 133_047_848, 22_616_932_352, 64),
        ("vgg13_bn", "vgg", 133_053_736, 22_616_932_352, 64),
        ("vgg16", "vgg", 138_357_544, 30_940_528_640, 32),
        ("vgg16_bn", "vgg", 138_365_992, 30_940_528_640, 32),
        ("vgg19", "vgg", 143_667_240, 39_264_124_928, 32),
        ("vgg19_bn", "vgg", 143_678_248, 39_264_124_928, 32),
        ("mnasnet0_5", "mnasnet", 2_218_512, 208_911_936, 128),
        ("mnasnet0_75", "mnasnet", 3_170_208, 430_986_208, 128),
        ("mnasnet1_0", "mnasnet", 4_383_312, 628_831_744, 128),
        ("mnasnet1_3", "mnasnet", 6_282_256, 1_052_724_864, 128),
        ("mobilenet_v2", "mobilenet", 3_504_872, 601_548_544, 128),
        ("shufflenet_v2_x0_5", "shufflenet", 1_366_792, 80_952_896, 128),
        ("shufflenet_v2_x1_0", "shufflenet", 2_278_604, 289_815_984, 128),
        ("shufflenet_v2_x1_5", "shufflenet", 3_503_624, 591_518_784, 128),
        ("shufflenet_v2_x2_0", "shufflenet", 7_393_996, 1_166_506_928, 128),
        ("squeezenet1_0", "squeezenet", 1_248_424, 1_637_849_152, 128),
        ("squeezenet1_1", "squeezenet", 1_235_496, 698_303_872, 128),
        ("alexnet", "alexnet", 61_100_840, 1_428_376_960, 128),
        ("googlenet", "googlenet", 13_004_888, 2_996_752_384, 128),
        ("inception_v3", "inception", 27_161_264, 11_426_432_192, 64),
    )
)

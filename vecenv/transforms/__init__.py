"""Import transforms, TransformedEnv and TransformedVectorEnv from here, and the files only inside vecenv.

docs/guides/transforms.md says where each can be.
"""

from vecenv.transforms.compose import Compose
from vecenv.transforms.images import CenterCrop, GrayScale, Resize, ToTensorImage
from vecenv.transforms.per_episode import CatFrames, NormalizeReward, RewardSum, StepCounter, TimeLimit
from vecenv.transforms.shapes import CatTensors, Flatten, RenameTransform, SqueezeTransform, UnsqueezeTransform
from vecenv.transforms.single_env import FrameSkip, NoopReset, PixelObservation
from vecenv.transforms.transform import EnvTransform, Rows, Transform
from vecenv.transforms.transformed_env import TransformedEnv
from vecenv.transforms.transformed_vector_env import TransformedVectorEnv
from vecenv.transforms.values import (
    ActionScaling,
    DoubleToFloat,
    DTypeCast,
    ObservationNorm,
    RewardClipping,
    RewardScaling,
)
from vecenv.transforms.vec_norm import VecNorm

__all__ = [
    "ActionScaling",
    "CatFrames",
    "CatTensors",
    "CenterCrop",
    "Compose",
    "DTypeCast",
    "DoubleToFloat",
    "EnvTransform",
    "Flatten",
    "FrameSkip",
    "GrayScale",
    "NoopReset",
    "NormalizeReward",
    "ObservationNorm",
    "PixelObservation",
    "RenameTransform",
    "Resize",
    "RewardClipping",
    "RewardScaling",
    "RewardSum",
    "Rows",
    "SqueezeTransform",
    "StepCounter",
    "TimeLimit",
    "ToTensorImage",
    "Transform",
    "TransformedEnv",
    "TransformedVectorEnv",
    "UnsqueezeTransform",
    "VecNorm",
]

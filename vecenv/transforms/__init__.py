"""Transforms of observations, rewards and actions, with the names and most arguments of torchrl.

docs/guides/transforms.md says when to use which.
"""

from vecenv.transforms.compose import Compose as Compose
from vecenv.transforms.images import CenterCrop as CenterCrop
from vecenv.transforms.images import GrayScale as GrayScale
from vecenv.transforms.images import Resize as Resize
from vecenv.transforms.images import ToTensorImage as ToTensorImage
from vecenv.transforms.per_episode import CatFrames as CatFrames
from vecenv.transforms.per_episode import NormalizeReward as NormalizeReward
from vecenv.transforms.per_episode import RewardSum as RewardSum
from vecenv.transforms.per_episode import StepCounter as StepCounter
from vecenv.transforms.per_episode import TimeLimit as TimeLimit
from vecenv.transforms.shapes import CatTensors as CatTensors
from vecenv.transforms.shapes import Flatten as Flatten
from vecenv.transforms.shapes import RenameTransform as RenameTransform
from vecenv.transforms.shapes import SqueezeTransform as SqueezeTransform
from vecenv.transforms.shapes import UnsqueezeTransform as UnsqueezeTransform
from vecenv.transforms.transform import EnvTransform as EnvTransform
from vecenv.transforms.transform import Rows as Rows
from vecenv.transforms.transform import Transform as Transform
from vecenv.transforms.transformed_env import FrameSkip as FrameSkip
from vecenv.transforms.transformed_env import NoopReset as NoopReset
from vecenv.transforms.transformed_env import PixelObservation as PixelObservation
from vecenv.transforms.transformed_env import TransformedEnv as TransformedEnv
from vecenv.transforms.transformed_vector_env import TransformedVectorEnv as TransformedVectorEnv
from vecenv.transforms.values import ActionScaling as ActionScaling
from vecenv.transforms.values import DoubleToFloat as DoubleToFloat
from vecenv.transforms.values import DTypeCast as DTypeCast
from vecenv.transforms.values import ObservationNorm as ObservationNorm
from vecenv.transforms.values import RewardClipping as RewardClipping
from vecenv.transforms.values import RewardScaling as RewardScaling
from vecenv.transforms.vec_norm import VecNorm as VecNorm

__all__ = sorted(name for name in dir() if name[0].isupper())

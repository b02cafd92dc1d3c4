"""Write transforms.npz: results of torchvision and TorchRL for the same inputs.

    python tests/vecenv/transforms/golden/make_transforms.py

Needs numpy, torchvision and torchrl. The file also has the inputs, so that random
generators may change, and the versions of the libraries (`made_with`).

When the file was made, the compiled operators of torchvision (`torch.ops.torchvision`) were stubs, because no build
fitted that torch. The results come from `transforms.v2.functional`, which does not call these operators.
"""

import importlib.metadata
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict
from torchrl import envs as rl
from torchvision.transforms.v2 import functional as tv

LIBRARIES = ["torchvision", "torchrl", "torch", "numpy"]
SIZES = {"smaller": (28, 21), "half": (20, 16), "larger": (50, 45), "mixed": (30, 41)}


def transformed(transform, **parts):
    """A batch as a transform of TorchRL returns it, under the key of its result."""
    parts = {name: torch.from_numpy(array) for name, array in parts.items()}
    return transform(TensorDict(parts, [len(next(iter(parts.values())))]))


def images(rng):
    found = {"pixels": rng.integers(0, 256, (2, 70, 50, 3), dtype=np.uint8)}
    found["small"] = rng.integers(0, 256, (2, 40, 32, 3), dtype=np.uint8)
    yield from found.items()
    pixels, small = found["pixels"], found["small"]
    floats = np.ascontiguousarray(small.transpose(0, 3, 1, 2) / np.float32(255))
    all_floats = {"smaller": np.ascontiguousarray(pixels.transpose(0, 3, 1, 2) / np.float32(255))}
    yield "torchvision gray", tv.rgb_to_grayscale(torch.from_numpy(floats)).numpy()
    yield "torchrl gray", transformed(rl.GrayScale(), pixels=floats)["pixels"].numpy()
    yield "torchrl to tensor", transformed(rl.ToTensorImage(), pixels=small)["pixels"].numpy()
    yield "torchrl crop", transformed(rl.CenterCrop(13, 20), pixels=floats)["pixels"].numpy()
    for name, (height, width) in SIZES.items():
        tensors = all_floats.get(name, floats)
        resized = tv.resize(torch.from_numpy(tensors), [height, width], antialias=True)
        yield f"torchvision resize {name}", resized.numpy()
        yield f"torchrl resize {name}", transformed(rl.Resize(height, width), pixels=tensors)["pixels"].numpy()


def vectors(rng):
    x, v = rng.normal(size=(6, 3)).astype(np.float32), rng.normal(size=(6, 2)).astype(np.float32)
    yield from {"x": x, "v": v}.items()
    cat = transformed(rl.CatTensors(["x", "v"], "both"), x=x, v=v)
    yield "torchrl cat tensors", cat["both"].numpy()
    norm = rl.ObservationNorm(0.5, 2.0, in_keys=["x"])
    yield "torchrl norm", transformed(norm, x=x)["x"].numpy()
    norm = rl.ObservationNorm(0.5, 2.0, in_keys=["x"], standard_normal=True)
    yield "torchrl standard normal", transformed(norm, x=x)["x"].numpy()
    yield "torchrl unsqueeze", transformed(rl.UnsqueezeTransform(-1, in_keys=["x"]), x=x)["x"].numpy()
    reward = rng.normal(size=(6, 1)).astype(np.float32)
    yield "reward", reward
    yield "torchrl scaled", transformed(rl.RewardScaling(1.0, 0.5), reward=reward)["reward"].numpy()
    yield "torchrl clipped", transformed(rl.RewardClipping(-0.5, 0.4), reward=reward)["reward"].numpy()
    vec_norm = rl.VecNorm(in_keys=["x", "reward"], decay=0.9, eps=1e-4)
    seen = []
    for batch in range(4):
        tensors = {"x": torch.from_numpy(x * (batch + 1)), "reward": torch.from_numpy(reward - batch)}
        both = vec_norm._step(TensorDict({}, [6]), TensorDict(tensors, [6]))
        seen.append([both["x"].numpy(), both["reward"].numpy()])
    yield "torchrl vec norm", np.stack([x for x, _ in seen])
    yield "torchrl vec norm of rewards", np.stack([reward for _, reward in seen])


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    made_with = np.array([f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES])
    arrays = {**dict(images(rng)), **dict(vectors(rng)), "made_with": made_with}
    np.savez_compressed(Path(__file__).with_name("transforms.npz"), **arrays)
    print(f"{len(arrays)} arrays, {Path(__file__).with_name('transforms.npz').stat().st_size} bytes")

"""The root folder of the project, for tests that run its programs or read its files."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

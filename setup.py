"""All metadata is in setup.cfg; this file lets every pip build and install the project."""

from setuptools import setup

setup()

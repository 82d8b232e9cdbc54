"""The UCI 8x8 digits: 1,797 images of handwritten digits."""

from paceline.datasets.digits.loading import load_data

__all__ = ["load_data"]

"""Decode: encoded bytes in, uint8 tensors out."""

from torchstage.decode.fault import DecodeError
from torchstage.decode.video import DecodedVideo, decode_video

__all__ = ["DecodeError", "DecodedVideo", "decode_video"]

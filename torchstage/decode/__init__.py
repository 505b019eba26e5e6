"""Decode: encoded bytes in, tensors of pixels out. Each call keeps to its thread, most of it without the GIL."""

from torchstage.decode.fault import DecodeError
from torchstage.decode.image import ImageInfo, decode_image, image_info
from torchstage.decode.video import DecodedVideo, decode_video

__all__ = ["DecodeError", "DecodedVideo", "ImageInfo", "decode_image", "decode_video", "image_info"]

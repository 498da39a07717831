"""Images and videos in prompts: refused in this version, with the line that asks for one."""

from __future__ import annotations

from typing import NoReturn

from lmc.errors import UsageError
from lmc.frontend.location import here

__all__ = ["image", "video"]


def image(source: object) -> NoReturn:  # noqa: ARG001 - what it is makes no difference
    """An image in a prompt.

    Raises:
        UsageError: always: this version has no models that see.
    """
    raise _refusal("images")


def video(source: object, num_frames: int = 8) -> NoReturn:  # noqa: ARG001 - as above
    """Frames of a video in a prompt.

    Raises:
        UsageError: always: this version has no models that see.
    """
    raise _refusal("videos")


def _refusal(what: str) -> UsageError:
    return UsageError(
        f"there are no {what} in prompts in this version of lmc",
        here(),
        hint="describe what is to be seen in words, or leave it out",
    )

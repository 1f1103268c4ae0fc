"""Refuses requests that vLLM's own checks stumble over.

Some of its checks look into a body before its types are known. A tool without a name, or a number
in place of an object, then raises KeyError or AttributeError, which vLLM answers with 500. What is
raised while a request is read is the request's fault, so it is answered with 400.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import traceback

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

READS = "fastapi.dependencies.utils"
"""The module that parses a request's body before its route is called."""


def refuse_unreadable(app: FastAPI) -> None:
    """Let an application of vLLM's routes answer 400 to what it can't read."""
    for kind in (LookupError, AttributeError, RecursionError):
        app.add_exception_handler(kind, answer_unreadable)


async def answer_unreadable(request: Request, error: Exception) -> Response:
    """400 for an error of a request's reading. Raises every other error again: it is a bug."""
    if not is_raised_by_reading(error):
        raise error
    what = f"{type(error).__name__}: {error}"
    message = f"a part of the request is missing or of a wrong type ({what})"
    told = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
    return JSONResponse({"error": told}, status_code=400)


def is_raised_by_reading(error: BaseException) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__") == READS for frame, _ in frames)

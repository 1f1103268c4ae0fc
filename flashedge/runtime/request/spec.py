"""For imports of the old name, which goes."""

from flashedge.runtime.request.request import USUAL_PATHS as USUAL_PATHS
from flashedge.runtime.request.request import Request as RunSpec

__all__ = ["USUAL_PATHS", "RunSpec"]

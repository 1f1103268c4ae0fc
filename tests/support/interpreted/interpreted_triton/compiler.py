"""Compiles nothing: the interpreter runs the kernels."""

from typing import Any

from triton.backends.compiler import BaseBackend


class NoCompiler(BaseBackend):
    @staticmethod
    def supports_target(target: Any) -> bool:
        return False

    def hash(self) -> str:
        return "interpreted"

    def parse_options(self, options: dict[str, Any]) -> object:
        return options

    def add_stages(self, stages: dict[str, Any], options: object, language: Any) -> None:
        return None

    def load_dialects(self, context: Any) -> None:
        return None

    def get_module_map(self) -> dict[str, Any]:
        return {}

"""What every engine must do, run over each implementation.

Subclass the classes in a test module that provides the fixtures

    generator: engine.base.Generator    verifier: engine.base.Verifier    problem: types.Problem

and runs its tests and fixtures on one event loop. The problem's paths should hold a step of at
most STEP_TOKENS tokens and end within PATH_TOKENS (see `engine_rig`). Nothing here depends on the
implementation. Waiting is done by polling, on whatever clock the loop has. A verifier that reuses
KV may have a method `score_whole` that does not; exactness is measured against that.
"""

from tests.contracts.generator_contract import GeneratorContract
from tests.contracts.offload_contract import OffloadContract
from tests.contracts.verifier_contract import VerifierContract

__all__ = ["GeneratorContract", "OffloadContract", "VerifierContract"]

"""Small models that FlashEdge trains and runs itself, beside the engines.

It imports torch, so it is imported only where a model is loaded or trained. `settings` and `files`
import no torch before they need it. A command that does neither stays fast.
"""

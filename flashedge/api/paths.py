"""The routes of the protocols that agents speak."""

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
SCORES = ("/v1/score", "/score")
PROTOCOL_ROUTES = {
    CHAT: "OpenAI's chat completions, by the model alone or by a search",
    RESPONSES: "OpenAI's responses, by the model alone or by a search",
    COMPLETIONS: "OpenAI's text completions",
    MESSAGES: "Anthropic's messages, by the model alone or by a search",
    f"{MESSAGES}/count_tokens": "Anthropic's count of a conversation's tokens",
    "/tokenize": "The tokens of a text or conversation, as vLLM answers it",
    "/detokenize": "The text of tokens, as vLLM answers it",
}
"""Routes of vLLM that clients may use, and what /openapi.json says of each."""

"""Shapes of the models of papers whose figures are simulated."""

from flashedge.models.shape import ModelShape

QWEN25_1_5B = ModelShape(
    name="Qwen2.5-1.5B", params=1_543_714_304, layers=28, heads=12, kv_heads=2, head_dim=128
)
QWEN25_7B = ModelShape(
    name="Qwen2.5-7B", params=7_615_616_512, layers=28, heads=28, kv_heads=4, head_dim=128
)
MISTRAL_7B = ModelShape(
    name="Mistral-7B", params=7_241_732_096, layers=32, heads=32, kv_heads=8, head_dim=128
)

"""How long outputs are, and what an order by their lengths costs."""

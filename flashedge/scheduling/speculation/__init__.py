"""Which steps are drafted before the search asks for them."""

"""Products on several devices: how a product is divided over them, and products that overlap with an exchange."""

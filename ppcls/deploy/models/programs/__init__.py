"""Checks of exported programs of Paddle before Paddle loads them."""

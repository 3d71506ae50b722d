"""The catalog in schema `pgtrickle`: installing it, reading it, writing it."""

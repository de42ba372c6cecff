"""The joint graph divided into forward and backward: what is saved between them, and what is computed again."""

"""The target model: packed verification of many sessions in one forward pass."""

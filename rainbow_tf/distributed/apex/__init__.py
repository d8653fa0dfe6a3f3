"""Ape-X (Horgan et al. 2018): many processes play, one learns."""

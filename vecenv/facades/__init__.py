"""Facades: classes that give a vecenv vector env the interface of another library's vector env."""

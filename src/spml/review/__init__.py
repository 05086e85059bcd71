"""The local web page on which people confirm and correct labels, or give the first ones."""

"""The files of archives, and the tables that follow them."""

"""SQL templates of the capture functions, composed by `triggers.py`. A package so that the files are packaged."""

"""The dashboard of `pgtrickle run --web`: a page in the browser that shows what goes on, and steers if it may."""

"""python -m tandem: the program `tandem` of this package."""

from tandem_program import main

main()

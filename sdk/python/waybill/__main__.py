"""`python -m waybill`: runs the program."""

from waybill import main

main()

"""Tests the tool by itself: `python3 -m unittest`. Neither a model nor a server is needed."""

import unittest

from tool import stock


class Stock(unittest.TestCase):
    def test_names_what_is_in_stock(self):
        self.assertEqual(stock("How many apples are left?"), "in stock: 12 apples")
        self.assertEqual(stock("Pears and plums?"), "in stock: 5 pears, 0 plums")

    def test_says_what_it_knows(self):
        self.assertIn("apples, pears, plums", stock("Any melons?"))


if __name__ == "__main__":
    unittest.main()

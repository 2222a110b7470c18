"""What mutants.py spoils, and what it leaves alone.

usage: mutants_test.py
"""

import unittest

import mutants


def spoilt(*lines):
    """The lines that come of these."""
    return [line.strip() for _, line in mutants.mutants_of("\n".join(lines))]


class Mutants(unittest.TestCase):
    def test_comparisons_are_turned_and_moved(self):
        found = spoilt("  return left < right;", "  return left == right;")
        self.assertEqual(found, ["return left <= right;", "return left != right;"])

    def test_conditions_are_negated_and_never_met(self):
        found = spoilt("  if (Full(heap)) return;")
        self.assertIn("if (!(Full(heap))) return;", found)
        self.assertIn("if (false && (Full(heap))) return;", found)

    def test_numbers_grow_by_one(self):
        self.assertEqual(spoilt("  const int kept = 0x1f;"), ["const int kept = 32;"])

    def test_statements_go_and_declarations_stay(self):
        self.assertIn("", spoilt("  heap.Free(block);"))
        self.assertIn("", spoilt("  used = sizes;"))
        self.assertNotIn("", spoilt("  int used = sizes;"))
        self.assertNotIn("", spoilt("  return heap.Free(block);"))

    def test_half_a_statement_does_not_go(self):
        self.assertNotIn("", spoilt("  const auto all = Sum(first,", "    second);"))

    def test_functions_end_early(self):
        self.assertIn("bool Heap::Whole() const { if (true) return true;",
                      spoilt("bool Heap::Whole() const {"))

    def test_comments_and_texts_are_left_alone(self):
        self.assertEqual(spoilt("  // a == b && 1;", '  "a == b, 1",', "#if A == 1"), [])

    def test_the_same_text_has_the_same_mutants(self):
        text = (mutants.ROOT / "vmm/sync/internal/fence_words.cc").read_text()
        first = list(mutants.mutants_of(text))
        self.assertGreater(len(first), 30)
        self.assertEqual(first, list(mutants.mutants_of(text)))

    def test_every_file_that_is_spoilt_has_mutants(self):
        for name in mutants.FILES:
            self.assertTrue(list(mutants.mutants_of((mutants.ROOT / name).read_text())), name)

    def test_every_explanation_is_of_a_mutant(self):
        for name, old, new in mutants.explanations():
            lines = (mutants.ROOT / name).read_text().split("\n")
            made = {(lines[n].strip(), line.strip())
                    for n, line in mutants.mutants_of("\n".join(lines))}
            self.assertIn((old, new), made, f"{name}: no such mutant")


if __name__ == "__main__":
    unittest.main()

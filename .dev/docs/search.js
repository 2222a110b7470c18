// What a find is worth to the search: Sphinx's own values, but that the text of a
// source comes after the pages that explain it. `var`, as Sphinx's script declares it, too.
var Scorer = {
  score: ([page, , , , score]) => (page.startsWith("source/") ? score - 100 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// Shows the rows that have all words of the filter; without this script all rows are shown.
const box = document.getElementById("filter"), words = document.getElementById("words");
const found = document.getElementById("found"), rows = [...document.querySelectorAll("tr[data-tokens]")];
function apply() {
  const asked = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const tokens = row.dataset.tokens.toLowerCase(), name = row.dataset.name.toLowerCase();
    // A word with a value is that option and no other: lr=0.1 is not lr=0.15.
    const has = word => /=./.test(word) ? tokens.includes(` ${word} `) : tokens.includes(word) || name.includes(word);
    row.hidden = !asked.every(has);
    shown += !row.hidden;
  }
  for (const section of document.querySelectorAll("section.runs"))
    section.hidden = !section.querySelector("tr[data-tokens]:not([hidden])");
  found.textContent = asked.length ? `${shown} of ${rows.length} runs` : "";
}
words.addEventListener("input", apply);
box.hidden = false;
apply();

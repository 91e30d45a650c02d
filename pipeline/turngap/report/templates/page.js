for (const tools of document.querySelectorAll(".tools")) {
  const list = tools.nextElementSibling, cards = [...list.children];
  const [outcome, slowest, shown] = ["select", "input", "output"].map((s) => tools.querySelector(s));
  const show = () => {
    const sorted = slowest.checked ? [...cards].sort((a, b) => b.dataset.wait - a.dataset.wait) : cards;
    for (const card of sorted) {
      card.hidden = outcome.value !== "" && card.dataset.outcome !== outcome.value;
      list.append(card);
    }
    shown.value = `${cards.filter((card) => !card.hidden).length} of ${cards.length} shown`;
  };
  tools.addEventListener("change", show);
  tools.hidden = false;
  show();
}

// A table that is wider than a phone shows each row as a block; on a larger screen it is scrolled.
const phone = matchMedia("(max-width: 600px)");
const fit = () => {
  for (const wide of document.querySelectorAll(".wide")) {
    wide.classList.remove("stacked");
    const over = wide.scrollWidth > wide.clientWidth + 1;
    wide.classList.toggle("stacked", over && phone.matches);
    wide.classList.toggle("scrolls", over && !phone.matches);
  }
};
// What is large begins folded on a phone.
if (phone.matches) document.querySelectorAll(".large").forEach((each) => { each.open = false; });
// A link to a turn unfolds it, and so does a printer.
const unfold = (inside) => inside?.querySelectorAll("details").forEach((each) => { each.open = true; });
const reach = () => location.hash && unfold(document.getElementById(location.hash.slice(1)));
addEventListener("hashchange", reach);
addEventListener("beforeprint", () => unfold(document));
reach();
addEventListener("resize", fit);
fit();

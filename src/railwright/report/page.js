"use strict";
(function () {
  const all = (selector, root) => Array.from((root || document).querySelectorAll(selector));
  all("[hidden]").forEach((part) => { part.hidden = false; });

  all("button.copy").forEach((button) => {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch (refused) {
        const range = document.createRange();
        range.selectNodeContents(code);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  });

  const articles = all("article");
  const open = (value) => articles.forEach((article) => { article.querySelector("details").open = value; });
  document.getElementById("unfold").addEventListener("click", () => open(true));
  document.getElementById("fold").addEventListener("click", () => open(false));

  const find = document.getElementById("find");
  const faulty = document.getElementById("faulty");
  const texts = new Map(articles.map((article) => [article.dataset.node, article.textContent.toLowerCase()]));
  const sift = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    articles.forEach((article) => {
      const text = texts.get(article.dataset.node);
      const shown = words.every((word) => text.includes(word)) && !(faulty.checked && article.dataset.good === "yes");
      count += shown ? 1 : 0;
      all('[data-node="' + article.dataset.node + '"]').forEach((part) => { part.hidden = !shown; });
    });
    document.getElementById("shown").textContent = count === articles.length ? "" : count + " of " + articles.length + " shown";
  };
  find.addEventListener("input", sift);
  faulty.addEventListener("change", sift);

  const reveal = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    const fold = target && target.querySelector("details");
    if (fold) { fold.open = true; }
  };
  addEventListener("hashchange", reveal);
  reveal();

  let folded = [];
  addEventListener("beforeprint", () => {
    folded = all("article > details:not([open])");
    folded.forEach((part) => { part.open = true; });
  });
  addEventListener("afterprint", () => { folded.forEach((part) => { part.open = false; }); });
})();

"use strict";
{
  const filters = document.getElementById("filters");
  if (filters) filters.addEventListener("change", (event) => { if (event.target.matches("select")) filters.submit(); });
  const count = () => {
    const button = document.getElementById("compare-button");
    if (!button) return;
    const ticked = document.querySelectorAll("input[name=run]:checked").length;
    button.disabled = ticked < 2;
    button.textContent = ticked < 2 ? "Compare ticked runs" : `Compare ${ticked} runs`;
  };
  document.addEventListener("change", count);
  addEventListener("pageshow", count);
  count();
}

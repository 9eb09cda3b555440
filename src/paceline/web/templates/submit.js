"use strict";
{
  const form = document.getElementById("submission");
  const verdict = document.getElementById("verdict");
  let timer = 0, asked = 0;
  const show = (checked) => {
    for (const place of form.querySelectorAll("[data-error]")) {
      const message = checked.errors[place.dataset.error] || "";
      if (place.textContent !== message) place.textContent = message;
      const field = form.elements.namedItem(place.dataset.error);
      if (field instanceof HTMLElement) {
        if (message) field.setAttribute("aria-invalid", "true"); else field.removeAttribute("aria-invalid");
      }
      const folded = place.closest("details");
      if (message && folded) folded.open = true;
    }
    const count = Object.keys(checked.errors).length;
    verdict.textContent = checked.ok ? checked.message
      : checked.errors[""] || (count === 1 ? "One field needs another look." : `${count} fields need another look.`);
    verdict.classList.toggle("error", !checked.ok);
  };
  const check = async () => {
    const mine = ++asked;
    try {
      const answer = await fetch("/submit/check", { method: "POST", body: new URLSearchParams(new FormData(form)) });
      if (answer.ok && mine === asked) show(await answer.json());
      else if (!answer.ok && mine === asked) verdict.textContent = "It cannot be checked just now; submitting checks it, too.";
    } catch {
      if (mine === asked) verdict.textContent = "The leader does not answer just now.";
    }
  };
  form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(check, 300); });
  const choose = document.getElementById("choose");
  if (choose) {
    choose.querySelector("button").hidden = true;
    choose.addEventListener("change", () => choose.submit());
  }
  check();
}

"use strict";
{
  const KEY = "paceline-reading", EVERY = 3000, LONGEST = 60000;
  const done = Number(document.getElementById("going").dataset.done);
  let pause = EVERY;
  // A report that has grown is loaded again, and the reader finds everything as it was left.
  const left = JSON.parse(sessionStorage.getItem(KEY) || "null");
  sessionStorage.removeItem(KEY);
  if (left && left.path === location.pathname) {
    left.open.forEach((id) => { const part = document.getElementById(id); if (part) part.open = true; });
    scrollTo(0, left.top);
  }
  const again = () => {
    const open = [...document.querySelectorAll("details[open][id]")].map((part) => part.id);
    sessionStorage.setItem(KEY, JSON.stringify({ path: location.pathname, open, top: scrollY }));
    location.reload();
  };
  const look = async () => {
    try {
      if (!document.hidden) {
        const answer = await fetch(`${location.pathname}/progress`, { cache: "no-store" });
        if (!answer.ok) throw new Error();
        const now = await answer.json();
        if (now.done !== done || now.status !== "running") { again(); return; }
      }
      pause = EVERY;
    } catch {
      pause = Math.min(LONGEST, 2 * pause);
    }
    setTimeout(look, pause);
  };
  setTimeout(look, pause);
}

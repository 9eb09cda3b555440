"use strict";
{
  const live = document.getElementById("live");
  const EVERY = 1000 * Number(live.dataset.every || 2), LONGEST = 60000;
  const stale = document.getElementById("stale");
  const address = new URL(location.href);
  address.searchParams.set("part", "live");
  address.hash = "";
  let pause = EVERY, heard = Date.now(), why = "", clock = 0;
  const span = (seconds) => seconds < 100 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
  // What is on the page stays, with its age, until the leader answers again.
  const age = () => {
    stale.hidden = !why;
    const seconds = Math.round((Date.now() - heard) / 1000);
    stale.textContent = why ? `What you see is ${span(seconds)} old: ${why}. It is tried again every ${pause / 1000} s.` : "";
  };
  // Only what differs is touched, so that focus, selection and what is unfolded stay as they are.
  const morph = (old, fresh) => {
    for (const { name, value } of fresh.attributes) {
      if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
    const mine = [...old.childNodes];
    [...fresh.childNodes].forEach((node, at) => {
      const known = mine[at];
      if (!known) old.append(node);
      else if (known.nodeName !== node.nodeName || known.id !== node.id) known.replaceWith(node);
      else if (known.nodeType === Node.ELEMENT_NODE) morph(known, node);
      else if (known.data !== node.data) known.data = node.data;
    });
    mine.slice(fresh.childNodes.length).forEach((node) => node.remove());
  };
  const show = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("live");
    if (!fresh) { location.reload(); return; }
    const log = document.getElementById("log");
    const atEnd = log && log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    morph(live, fresh);
    const grown = document.getElementById("log");
    if (grown && (atEnd || !log)) grown.scrollTop = grown.scrollHeight;
  };
  const look = async () => {
    try {
      if (!document.hidden) {
        const answer = await fetch(address, { headers: { accept: "text/html" }, cache: "no-store" });
        if (!answer.ok) throw new Error(`the leader answered ${answer.status}`);
        show(await answer.text());
        heard = Date.now();
        why = "";
        clearInterval(clock);
        clock = 0;
        age();
      }
      pause = EVERY;
    } catch (problem) {
      pause = Math.min(LONGEST, 2 * pause);
      why = problem instanceof TypeError ? "the leader does not answer" : problem.message;
      if (!clock) clock = setInterval(age, 1000);
      age();
    }
    if (!live.hasAttribute("data-over")) setTimeout(look, pause);
  };
  const log = document.getElementById("log");
  if (log) log.scrollTop = log.scrollHeight;
  if (!live.hasAttribute("data-over")) setTimeout(look, pause);
}

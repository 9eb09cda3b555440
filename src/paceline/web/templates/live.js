"use strict";
{
  const EVERY = 2000, LONGEST = 60000;
  const live = document.getElementById("live");
  const connection = document.getElementById("connection");
  const address = new URL(location.href);
  address.searchParams.set("part", "live");
  address.hash = "";
  let pause = EVERY;
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
        connection.textContent = "";
      }
      pause = EVERY;
    } catch (problem) {
      pause = Math.min(LONGEST, 2 * pause);
      connection.textContent = `Not up to date: ${problem.message}. Trying again in ${pause / 1000} s.`;
    }
    if (!live.hasAttribute("data-over")) setTimeout(look, pause);
  };
  const log = document.getElementById("log");
  if (log) log.scrollTop = log.scrollHeight;
  if (!live.hasAttribute("data-over")) setTimeout(look, pause);
}

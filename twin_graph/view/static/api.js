// What the server is asked for, and what it tells by itself. Addresses are relative: the page's own holds the token.

async function answered(response) {
  const document = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(document.error);
  return document;
}

export async function get(path, query = {}) {
  const asked = new URLSearchParams(query).toString();
  return answered(await fetch(`api/${path}${asked ? `?${asked}` : ""}`));
}

export async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  return answered(await fetch(`api/${path}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

/**
 * Calls `changed(message)` when runs change, and `linked(isLinked)` when the connection comes or goes. While the page
 * is hidden nothing is followed.
 */
export function follow(version, changed, linked) {
  let source = null;
  const open = () => {
    source = new EventSource(`api/events?since=${version}`);
    source.onopen = () => linked(true);
    source.onerror = () => linked(false);
    source.onmessage = (event) => {
      version = Number(event.lastEventId);
      changed(JSON.parse(event.data));
    };
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (!source) open();
  });
  if (!document.hidden) open();
}

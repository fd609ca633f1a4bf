// Requests to the server that this page came from, with the token from behind the `#` of its address.

const KEY = "relax-token";
let token = sessionStorage.getItem(KEY) ?? "";

export class Refused extends Error {}
export class Unreachable extends Error {}

export function takeToken() {
  const found = /[#&]token=([^&]+)/.exec(location.hash);
  if (found) {
    useToken(decodeURIComponent(found[1]));
    history.replaceState(null, "", location.pathname + "#/");
  }
}

export function useToken(value) {
  token = value;
  sessionStorage.setItem(KEY, value);
}

async function answerOf(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined && one !== null) query.append(name, one);
  }
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const answer = await fetch(`api/${path}?${query}`, { headers }).catch((error) => { throw new Unreachable(error.message); });
  if (answer.status === 401) throw new Refused("This dashboard needs its token: the part behind #token= of the address that `relax ui` printed.");
  if (answer.ok) return answer;
  const body = await answer.json();
  throw new Error(typeof body.detail === "string" ? body.detail : `error ${answer.status}`);
}

export async function get(path, parameters = {}) {
  return (await answerOf(path, parameters)).json();
}

// An address within this page for what only the token may fetch.
export async function getFile(path, parameters) {
  return URL.createObjectURL(await (await answerOf(path, parameters)).blob());
}

// What a sample carried beside text: images and frames to see, sounds to play, and where each is from.
import { getFile } from "./api.js";
import { el } from "./dom.js";

const SHOWN = { image: picture, video: picture, audio: player };

export function media(run, found) {
  const shown = el("div", { class: "media" });
  const counts = {};
  for (const medium of found) {
    const number = (counts[medium.kind] = (counts[medium.kind] ?? 0) + 1);
    const label = `${medium.kind} ${number}`;
    shown.append(...medium.files.map((file, i) => {
      const name = medium.files.length > 1 ? `${label}, frame ${i + 1} of ${medium.files.length}` : label;
      const element = SHOWN[medium.kind]?.(name) ?? picture(name);
      const caption = el("figcaption", {}, `${name}, from ${medium.source}`);
      getFile("media", { run, file }).then(
        (address) => { element.onload = () => URL.revokeObjectURL(address); element.src = address; },
        (error) => element.replaceWith(el("p", { class: "error", role: "alert" }, error.message)));
      return el("figure", {}, element, caption);
    }));
    if (!medium.files.length) shown.append(el("p", { class: "quiet" }, `${label} was not kept: ${medium.source}`));
  }
  return el("section", { class: "card", "aria-label": "Media" }, el("h2", {}, "Images and audio"), shown);
}

function picture(name) {
  return el("img", { alt: `${name} of the prompt` });
}

function player(name) {
  return el("audio", { controls: true, "aria-label": `${name} of the prompt` });
}

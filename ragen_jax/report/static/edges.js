// Boxes that scroll sideways: a shadow at each side where there is more, and a hint below.
"use strict";

// `box` is the first child of a "div.frame"; what follows the frame is a "p.hint".
function watchEdges(box) {
  const frame = box.parentNode;
  const look = () => {
    const hidden = box.scrollWidth - box.clientWidth;
    frame.classList.toggle("more-left", box.scrollLeft > 1);
    frame.classList.toggle("more-right", box.scrollLeft < hidden - 1);
  };
  box.addEventListener("scroll", look, { passive: true });
  const sizes = new ResizeObserver(look);
  for (const node of [box, ...box.children]) sizes.observe(node);
}

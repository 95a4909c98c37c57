// Gradients by bucket of reward spread.
"use strict";

// Parts of the loss in the colour of their series, told apart by mark and shade.
const PART_SHADES = { task: 100, entropy: 65, kl: 40 };
const partColor = (series, part) => shadeOf(series, PART_SHADES[part]);
const shadeOf = (series, percent) =>
  `color-mix(in srgb, ${color(series)} ${percent}%, var(--line))`;

const norm = (point) => (point.length ? short(point[0]) : "–");

// Norms by bucket, the mean over the run, on a logarithmic axis: one figure a series.
function bucketFigure(series) {
  const { names, means } = DATA.buckets,
    norms = means[series];
  // Of a loss without entropy or KL these norms are 0.
  const parts = DATA.buckets.parts.filter((p) => norms[p].some((v) => v[0] > 0));
  const labels = names.map((n) => n.replace("bucket_", ""));
  const title = "Gradient norms";
  const alt =
    `${DATA.series[series].name}: gradient norms by bucket of reward variance, mean over the run. ` +
    parts.map((part) => `${part}: ${norms[part].map(norm).join(", ")}`).join("; ");
  return figure(
    title,
    alt,
    (root, width, tip) => {
      const height = 236,
        box = { left: 46, right: width - 10, top: 28, bottom: height - 40 };
      resize(root, width, height);
      const values = DATA.buckets.means
        .flatMap((m) => DATA.buckets.parts.flatMap((p) => (m ? m[p].flat() : [])))
        .filter((v) => v > 0);
      if (!values.length) {
        root.append(caption(width / 2, 110, "all norms are 0", { "text-anchor": "middle" }));
        return;
      }
      const low = Math.floor(Math.log10(Math.min(...values))),
        high = Math.ceil(Math.log10(Math.max(...values)) + 1e-9);
      const y = { ends: [10 ** low, 10 ** high], isLog: true, unit: "L2 norm (log scale)" };
      const sy = yAxis(root, box, y, "number");
      const sx = (k) => box.left + ((k + 0.5) / names.length) * (box.right - box.left);
      root.append(
        caption(box.right, box.bottom + 33, "bucket, by reward spread", { "text-anchor": "end" }),
      );
      labels.forEach((label, k) =>
        root.append(caption(sx(k), box.bottom + 17, label, { "text-anchor": "middle" })),
      );
      parts.forEach((part, j) => {
        const at = norms[part]
          .map((v, k) => [sx(k) + (j - (parts.length - 1) / 2) * 10, v])
          .filter(([, v]) => v[0] > 0);
        const paint = partColor(series, part);
        root.append(
          polyline(
            at.map(([x, v]) => [x, sy(v[0])]),
            paint,
            1.4,
            { opacity: 0.55 },
          ),
        );
        for (const [x, v] of at) {
          if (v[1] > 0)
            root.append(
              segment(x, sy(v[1]), x, sy(v[2]), {
                stroke: paint,
                "stroke-width": 3,
                opacity: 0.35,
              }),
            );
          root.append(mark(MARKS[j], x, sy(v[0]), 4, { fill: paint }));
        }
      });
      cursor(
        root,
        names.map((_, k) => sx(k)),
        (k) =>
          show(tip, sx(k), box.top, width, [
            el("b", `bucket ${labels[k]}`),
            ...parts.map((p) => tipRow(partColor(series, p), p, norm(norms[p][k]))),
          ]),
        () => hide(tip),
      );
    },
    {
      keys: () => [
        ...seriesKeys([series]),
        ...parts.map((part, j) => markKey(MARKS[j], part, { fill: partColor(series, part) })),
      ],
      numbers: () =>
        table(
          ["bucket", ...parts],
          labels.map((label, k) => [label, ...parts.map((p) => norm(norms[p][k]))]),
        ),
    },
  );
}

// A part of every bucket over the iterations, in shades from least to most spread.
function bucketCourse(series, part, title, unit) {
  const { names, prefix } = DATA.buckets;
  const shade = (k) =>
    shadeOf(series, names.length > 1 ? Math.round(25 + (75 * k) / (names.length - 1)) : 100);
  const keys = () => [
    ...seriesKeys([series]),
    ...names.map((n, k) => colorKey(shade(k), n.replace("_", " "))),
  ];
  const panel = { title, unit, kind: "number", lines: [] };
  return lineChart(
    panel,
    () =>
      names
        .map((name, k) => {
          const curve = (DATA.curves[`${prefix}${name}/${part}`] || [])[series];
          const label = name.replace("_", " ");
          return (
            curve && {
              ...curve,
              low: null,
              error: null,
              name: label,
              label,
              style: "main",
              mark: shape(series),
              dash: null,
              color: shade(k),
            }
          );
        })
        .filter(Boolean),
    { keys },
  );
}

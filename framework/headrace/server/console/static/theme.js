// Sets the remembered colours before the first paint. It is no module, since modules run later.
{
  const remembered = localStorage.getItem("headrace.theme");
  if (remembered === "dark" || remembered === "light") document.documentElement.dataset.theme = remembered;
}
